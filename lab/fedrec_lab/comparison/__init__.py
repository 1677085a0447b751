"""An algorithm beside what it has to beat, measured alike."""
