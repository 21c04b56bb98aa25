"""Many runs from one file: which are left, what each process of theirs does, what came of all."""
