"""Diagnoses of profiles: each module is one, with its trigger, its evidence and its advice."""
