"""`atrex optimize ablate`: what dropout brings, by whole campaigns on a compiled kernel under an equal budget.

Campaigns run through the supervisor, memory, masks and director that every campaign uses; the lab alone is another one
(`lab`), which measures less at a time.
"""
