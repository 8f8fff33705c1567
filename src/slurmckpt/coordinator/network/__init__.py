"""The network of a restored pod: where its old addresses are, how it gets out, and what becomes of its connections.

Sockets that are bound to the old node's address cannot be bound in the new node's network. So such a pod gets a network
namespace of its own with that address on its loopback device: connections between its ranks are exact. So does, where
pasta is installed, every pod that comes back on another node: a port may be taken there, and ranks that are still to
connect know the old node's name or address. All pods of the job share it (job_network). Its way out is pasta (package
passt), a process that speaks TCP and UDP to the world on behalf of a tap device in the namespace: it needs no privilege
on the node and changes nothing in the node's network. Connections to the outside are dead on another node, whatever
network the pod is in: they are reset before the pod runs.
"""

from slurmckpt.coordinator.network.addresses import foreign, reachable
from slurmckpt.coordinator.network.job_network import JobNetwork
from slurmckpt.coordinator.network.namespace import NetworkError
from slurmckpt.coordinator.network.pod_network import PodNetwork
from slurmckpt.coordinator.network.resets import remove, reset

__all__ = ["JobNetwork", "NetworkError", "PodNetwork", "foreign", "reachable", "remove", "reset"]
