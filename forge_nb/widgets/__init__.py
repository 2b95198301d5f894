"""What is drawn on screen: the live view of a session and its static transcript."""
