# Rscript walk.R STEPS SECONDS: a random walk through linear algebra; each line depends on all before it.
words <- commandArgs(trailingOnly = TRUE)
set.seed(7)
state <- matrix(rnorm(10000), 100)
for (number in seq_len(as.integer(words[1])) - 1) {
    state <- qr.Q(qr(state + matrix(rnorm(10000), 100)))
    cat(number, sprintf("%.15g", sum(state * seq_along(state))), "\n")
    Sys.sleep(as.numeric(words[2]))
}
