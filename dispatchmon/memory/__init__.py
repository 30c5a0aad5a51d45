"""Which bytes of a memory a tensor covers, and which of them hold NaN or Inf: plain numbers, without torch."""
