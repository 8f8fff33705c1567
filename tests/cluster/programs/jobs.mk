# Prints `steps` lines and rests for `pause` seconds before each. Each line is made by a make of its own, whose two jobs
# go by the job server of the first one: a named pipe in the node's own /tmp.
all:
	+@for n in $$(seq $(steps)); do $(MAKE) -s -f jobs.mk line n=$$n; done

line: first second
	@echo "$(n) $$(echo $(n) | sha256sum | cut -c1-64)"

first second:
	@sleep $(pause)

.PHONY: all line first second
