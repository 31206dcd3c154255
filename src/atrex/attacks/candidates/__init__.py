"""Honest kernels, each a candidate as it stands, that attacks and their twins are built on."""
