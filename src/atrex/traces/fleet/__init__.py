"""A fleet: the applications that run on it, with their card-hours and traces, weighted as the paper weights them."""
