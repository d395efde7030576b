import type { Clock } from '../../base/clock.ts'
import { type MissingExtension, missingText, probeXt, type XtUse } from '../../kernel/xt/probe.ts'
import { Connection } from '../../netlink/connection.ts'
import type { KernelSockets } from '../mode.ts'

export function missingXt(
  { netfilter }: Pick<KernelSockets, 'netfilter'>,
  clock: Clock,
): readonly MissingExtension[] {
  const transport = netfilter()
  try {
    return probeXt(new Connection({ transport, clock }))
  } finally {
    // The client waits for each reply, so nothing is in flight.
    void transport.close()
  }
}

function lackFor(
  uses: readonly XtUse[],
  sockets: Pick<KernelSockets, 'netfilter'>,
  clock: Clock,
): string | undefined {
  const missing = missingXt(sockets, clock).filter(({ use }) => uses.includes(use))
  return missing.length === 0 ? undefined : missingText(missing)
}

/** Throws where the kernel lacks extensions that the rules of every Service need. */
export function demandIptables(sockets: Pick<KernelSockets, 'netfilter'>, clock: Clock): void {
  const lack = lackFor(['services'], sockets, clock)
  if (lack === undefined) return
  throw new Error(
    `this kernel lacks matches or targets that iptables mode needs: ${lack}. Run \`kprobe doctor --proxy-mode=iptables\` for the other requirements`,
  )
}

/** Describes the extensions that are missing for some Services only; undefined when none is. */
export function lesserLack(sockets: Pick<KernelSockets, 'netfilter'>, clock: Clock): string | undefined {
  return lackFor(['affinity', 'sctp'], sockets, clock)
}
