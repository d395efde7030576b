import { writeFileSync } from 'node:fs'

/** What the daemon sets before it serves, in the network namespace that this process is in now. */
export function setIpvsSysctls(): void {
  for (const name of ['conntrack', 'expire_nodest_conn', 'expire_quiescent_template'])
    writeFileSync(`/proc/sys/net/ipv4/vs/${name}`, '1')
}
