"""Places as Textual screens: each draws what a view says of the picture, and turns keys into places and acts."""
