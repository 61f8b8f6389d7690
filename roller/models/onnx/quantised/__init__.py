"""Models that say their quantisation (QDQ, QLinear operators) as arithmetic on the integers they store."""
