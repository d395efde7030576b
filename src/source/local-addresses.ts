import { networkInterfaces } from 'node:os'
import type { Cancel, Clock } from '../base/clock.ts'
import { type Ip, parseIp } from '../base/ip.ts'

export interface LocalAddressesOptions {
  readonly clock: Clock
  /** Gives the addresses of this machine's interfaces as text; os.networkInterfaces unless a test says otherwise. */
  readonly read?: () => readonly string[]
  /** Called with every address, sorted, at the start and whenever they have changed. */
  readonly changed: (ips: readonly Ip[]) => void
}

const POLL_MS = 1_000

/** Watches the addresses of this machine, for NodePorts on ranges. The result stops it. */
export function watchLocalAddresses(options: LocalAddressesOptions): () => void {
  const { clock, changed, read = interfaceAddresses } = options
  let timer: Cancel | undefined
  let known: string | undefined
  const look = () => {
    const ips = read()
      .map(parseIp)
      .filter(ip => ip !== undefined)
    const sorted = [...new Set(ips)].sort()
    const said = sorted.join('|')
    if (said !== known) changed(sorted)
    known = said
    timer = clock.after(POLL_MS, look)
  }
  look()
  return () => timer?.()
}

function interfaceAddresses(): string[] {
  return Object.values(networkInterfaces()).flatMap(list => (list ?? []).map(({ address }) => address))
}
