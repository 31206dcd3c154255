"""The static site: pages over runs, campaigns, traces, chips and the wiki, in one folder that opens from disk."""
