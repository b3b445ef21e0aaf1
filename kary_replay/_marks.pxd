"""What is known of each row of a ring beside its bytes: one byte a row."""

cdef enum Mark:
    FIRST = 1       # the first of its episode: no window of a later row goes back past it
    LAST = 2        # the last of its episode: the next row of the lane is a FIRST
    STEP = 4        # a step, to which a reward belongs; without it, an observation alone
    TERMINATED = 8  # a step that ended its episode by itself
    WRITING = 16    # claimed, and its bytes not all there
    DRAWABLE = 32   # a step that is all there, and so is what its windows reach back to
    NEWEST = 64     # the newest row of its lane
    CUT = 128       # a step whose windows reach back to a row that has been overwritten
