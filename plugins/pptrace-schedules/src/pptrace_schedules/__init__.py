"""Pipeline schedules: gpipe, 1f1b, interleaved-1f1b, looped-bfs, chimera, hanayo, bitpipe and zero bubble."""
