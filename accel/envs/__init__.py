"""Vector environments of any gymnasium id, as the actors see them; nothing here imports torch."""
