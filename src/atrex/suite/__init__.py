"""The shipped problem set: one folder per operator, the weights, and the distributions that inputs are drawn from."""
