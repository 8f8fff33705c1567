# shellcheck shell=bash
# One bridge per sandbox, in a network namespace of its own: no name and no address can collide with
# anything on this machine or with another sandbox. There is no way out of it.

NETWORK=10.20.0

address_of() {
    case $1 in
    ctl) echo "$NETWORK.1" ;;
    login) echo "$NETWORK.2" ;;
    n*) echo "$NETWORK.$((10 + ${1#n}))" ;;
    esac
}

switch_create() {
    [ -e "/run/netns/$SWITCH" ] && return
    if ! { ip netns add "$SWITCH" &&
        ip -n "$SWITCH" link add bridge type bridge forward_delay 0 stp_state 0 &&
        ip -n "$SWITCH" link set bridge up; }; then
        die "cannot create the network"
    fi
}

switch_remove() {
    if [ -e "/run/netns/$SWITCH" ]; then ip netns del "$SWITCH"; fi
}

link_up() { ip -n "$SWITCH" link set "$1" up; }
link_down() { ip -n "$SWITCH" link set "$1" down 2>/dev/null || :; }
link_is_up() { ip -n "$SWITCH" link show "$1" 2>/dev/null | grep -q '[<,]UP[,>]'; }

# A namespace that died takes its end of the cable along a moment later: do not wait for the kernel.
link_remove() { ip -n "$SWITCH" link del "$1" 2>/dev/null || :; }
