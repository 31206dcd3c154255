"""The analyses of the Atrex-Bench paper over finished runs, as data. One module an analysis."""
