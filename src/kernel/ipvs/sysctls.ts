import { readFile } from 'node:fs/promises'
import {
  type TuneOptions,
  type TuneReport,
  tuneSysctls,
  type WantedSysctl,
  wantedSysctl as wanted,
} from '../sysctl/sysctls.ts'

interface IpvsSysctlSettings {
  /** The node answers ARP only for addresses of the receiving interface, so not for those of kube-ipvs0. */
  readonly strictArp: boolean
}

/**
 * Lists the sysctls that kube-proxy's IPVS mode sets (Documentation/networking/ipvs-sysctl.rst and ip-sysctl.rst).
 * IPVS's own exist once its module is loaded. `release` is the output of uname: `6.1.0-44-amd64`.
 */
export function ipvsSysctls({ strictArp }: IpvsSysctlSettings, release: string): readonly WantedSysctl[] {
  return [
    // IPVS connections have a conntrack entry, so that rules can masquerade them.
    wanted('net/ipv4/vs/conntrack', 1),
    ...(delaysReusedPorts(release) ? [wanted('net/ipv4/vs/conn_reuse_mode', 0)] : []),
    // The kernel drops a connection when its real server is removed, without waiting for its timeout.
    wanted('net/ipv4/vs/expire_nodest_conn', 1),
    wanted('net/ipv4/vs/expire_quiescent_template', 1),
    wanted('net/ipv4/ip_forward', 1),
    ...(strictArp
      ? [wanted('net/ipv4/conf/all/arp_ignore', 1), wanted('net/ipv4/conf/all/arp_announce', 2)]
      : []),
  ]
}

/** conn_reuse_mode (Linux 4.1): before 5.9, the value 1 delays a second connection from the same port by a second. */
function delaysReusedPorts(release: string): boolean {
  const [, major, minor] = /^(\d+)\.(\d+)/.exec(release) ?? []
  if (major === undefined || minor === undefined) return false
  const version = Number(major) * 1000 + Number(minor)
  return version >= 4001 && version < 5009
}

/** Sets the kernel's sysctls for IPVS mode, as ipvsSysctls lists them. Does not reject. */
export async function tuneIpvs(
  settings: IpvsSysctlSettings,
  { root = '/' }: TuneOptions = {},
): Promise<TuneReport> {
  return await tuneSysctls(ipvsSysctls(settings, await readRelease(root)), { root })
}

/** Empty where the kernel does not report it. */
async function readRelease(root: string): Promise<string> {
  try {
    return await readFile(`${root}proc/sys/kernel/osrelease`, 'utf8')
  } catch {
    return ''
  }
}
