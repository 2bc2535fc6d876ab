"""What a process tells about itself, and where a test may stop it."""
