"""What a maintainer is asked to merge: one short kernel with its wrapper, test and evidence."""
