"""What people look at, drawn from plain rows, numbers and pictures; nothing here knows what a detector is."""
