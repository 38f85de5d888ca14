"""What is said to people and programs, and in which form. Pure, too."""
