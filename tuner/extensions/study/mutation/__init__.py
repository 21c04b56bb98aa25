"""How strong is the check? Break the kernel in many small ways and see what is caught."""
