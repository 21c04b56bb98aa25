"""Diagnoses of profiles: each has its trigger, its evidence and its advice."""
