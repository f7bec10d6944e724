"""What the publisher is made of: levels, their upkeep, the inputs they are held against. Imports torch."""
