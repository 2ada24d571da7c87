"""Pipeline schedules: gpipe, 1f1b, interleaved-1f1b and looped-bfs."""
