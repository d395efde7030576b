import type { IpvsClient } from '../../kernel/ipvs/client.ts'
import type { IpvsTimeouts } from '../../kernel/ipvs/state.ts'

/** Gives the timeouts to set, 0 to keep one; undefined when the kernel has the wanted ones. */
export function timeoutsToSet(present: IpvsTimeouts, wanted: IpvsTimeouts): IpvsTimeouts | undefined {
  const change = (now: number, asked: number): number => (asked === now ? 0 : asked)
  const tcpS = change(present.tcpS, wanted.tcpS)
  const tcpFinS = change(present.tcpFinS, wanted.tcpFinS)
  const udpS = change(present.udpS, wanted.udpS)
  return tcpS === 0 && tcpFinS === 0 && udpS === 0 ? undefined : { tcpS, tcpFinS, udpS }
}

/** Sets the wanted timeouts of IPVS. Gives the previous ones, undefined without a change. Throws NetlinkError. */
export function applyTimeouts(
  client: Pick<IpvsClient, 'timeouts' | 'setTimeouts'>,
  wanted: IpvsTimeouts,
): IpvsTimeouts | undefined {
  const present = client.timeouts()
  const change = timeoutsToSet(present, wanted)
  if (change === undefined) return undefined
  client.setTimeouts(change)
  return present
}
