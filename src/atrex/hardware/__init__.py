"""Chips as data files with a cited source per value; detection; calibration."""
