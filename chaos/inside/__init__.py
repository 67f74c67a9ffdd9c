"""What is done inside a rank, by its agent, on its training thread. Only what is imported when it is first needed."""
