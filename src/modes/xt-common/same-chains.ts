/**
 * The reason why iptables mode and IPVS mode with rules of iptables cannot run at once: each would undo the other's
 * changes.
 */
export const SAME_CHAINS =
  'iptables mode and IPVS mode with --ipvs-rules=iptables use chains of the same names; restart kprobe to change from one to the other'
