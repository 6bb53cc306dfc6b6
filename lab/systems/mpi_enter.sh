#!/bin/sh
# Takes ssh's place for MPI's launchers: mpi_enter.sh [-OPTION...] HOST COMMAND...
# HOST is the name of a lab host's network namespace. The command gets that as its own host name, too:
# ranks that believe to be on one machine talk through its memory, and nothing would cross the network.
# $HOPLITE_LAB_HOSTS_FILE says which address each name has; the command alone sees it as /etc/hosts.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c '
    hostname "$0" && mount --bind "$HOPLITE_LAB_HOSTS_FILE" /etc/hosts && eval "$*"
' "$host" "$@"
