"""Many kernels and many machines: campaigns, clusters, sessions on a server."""
