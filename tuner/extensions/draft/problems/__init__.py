"""Drafts from another project's problem: what a kernel takes and gives, before there is one."""
