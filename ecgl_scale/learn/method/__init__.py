"""What a method is, and what methods share. The methods themselves are in ``learn.methods``, one file each."""
