"""Measure and compile on the hosts of a Dask cluster; imported only when one is asked for."""
