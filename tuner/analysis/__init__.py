"""What the machine code, the compiler and the counters say of one config, and what that means."""
