import { systemClock } from '../base/clock.ts'
import { oneLine } from '../base/text.ts'
import { HERE } from '../daemon/open.ts'
import { createConntrackClient } from '../kernel/conntrack/client.ts'
import { decodeRecord } from '../kernel/conntrack/record.ts'
import { ownCommand } from './command.ts'
import { followFlows } from './flow-follow.ts'
import { FlowGroups, type NamedFlow, namedFlow } from './flow-groups.ts'
import { FlowNames } from './flow-names.ts'
import {
  FLOWS_FLAGS,
  type FlowsRequest,
  type FlowsSession,
  readFlowsRequest,
  withPeers,
} from './flow-request.ts'
import { flowJson, flowTable, groupJson, groupTable, textOf } from './flow-text.ts'
import { readFlowSettings } from './flow-watch.ts'
import { EXIT_FINE, type Io } from './io.ts'
import { writeWarnings } from './output.ts'

export const command = ownCommand({
  name: 'flows',
  description:
    'Prints who talks to what: the tracked connections of this network namespace with their Service, client and\n' +
    'endpoint. With --follow, connections as they begin and end. Reads the kernel, and the daemon for the names.',
  details: [
    'Example:',
    '  kprobe flows --service shop/cart',
    '  kprobe flows --follow --from 10.1.0.0/16 -o json',
    '  kprobe flows --to pod/shop/cart-1 --group-by client',
    '  kprobe flows --follow --group-by endpoint --duration 10s',
    '',
    'The kernel counts bytes and packets where net.netfilter.nf_conntrack_acct is 1, and keeps times where net.netfilter.nf_conntrack_timestamp is 1, each for connections that begin after it is set.',
    'Since Linux 5.19, --follow reports the end only of connections that began while a program listened.',
    'Events that the kernel had to drop are counted and named.',
  ],
  flags: FLOWS_FLAGS,
  read: readFlowsRequest,
  run,
})

async function run(asked: FlowsRequest, io: Io): Promise<number> {
  const settings = readFlowSettings()
  const request = await withPeers(asked)
  const names = await FlowNames.open({ clock: systemClock, ...request })
  const session = { request, names, settings, clock: systemClock, wallMs: Date.now, io }
  for (const notice of await noticesOf(session)) io.err(`kprobe flows: ${oneLine(notice)}\n`)
  return request.follow ? await followFlows(session) : await listFlows(session)
}

async function noticesOf({ request, names, settings }: FlowsSession): Promise<readonly string[]> {
  return [
    ...(names.notice === undefined ? [] : [names.notice]),
    ...(await names.noticesAbout(request.filter.service)),
    ...settings.notices,
  ]
}

/** Prints the present table of connections. */
async function listFlows({ request, names, settings, clock, wallMs, io }: FlowsSession): Promise<number> {
  const { filter, by, limit, output } = request
  const client = createConntrackClient({ openTransport: HERE.sockets.netfilter, clock })
  const flows: NamedFlow[] = []
  const withVolume = settings.hasVolume
  const groups = by === undefined ? undefined : new FlowGroups({ names, filter, by, withVolume })
  let more = 0
  const isWhole = await client
    .dumpAll((view, message) => {
      if (groups !== undefined) return groups.take('new', view, message)
      const record = decodeRecord(view, message)
      const flow = record === undefined ? undefined : namedFlow(record, { names, filter })
      if (flow === undefined) return
      if (flows.length < limit) flows.push(flow)
      else more++
    })
    .finally(() => client.close())
  const nowMs = wallMs()
  if (by !== undefined && groups !== undefined) {
    const largest = groups.largest()
    const counts = { by, of: 'open' } as const
    const shown = largest.slice(0, limit)
    if (output === 'json')
      for (const group of shown) io.out(`${JSON.stringify(groupJson(group, counts, nowMs))}\n`)
    else io.out(textOf(groupTable(shown, counts), io))
    more = largest.slice(limit).reduce((sum, { begun }) => sum + begun, groups.others.begun)
  } else if (output === 'json')
    for (const flow of flows) io.out(`${JSON.stringify(flowJson('open', flow, nowMs))}\n`)
  else io.out(textOf(flowTable(flows, nowMs), io))
  await writeWarnings(
    [
      ...(more === 0
        ? []
        : [`left out ${more.toLocaleString('en-US')} more connections; --limit prints more lines`]),
      ...(isWhole ? [] : ['the table changed while it was read: some connections may be missing']),
    ],
    io,
  )
  return EXIT_FINE
}
