import { buildInfo, buildText } from '../../base/build-info.ts'
import { systemClock } from '../../base/clock.ts'
import { errorText } from '../../base/errors.ts'
import { fieldOf } from '../../base/plain-data.ts'
import { lent } from '../../cli/io.ts'
import type { Config } from '../../config/config.ts'
import { MODE_NAMES } from '../../config/modes.ts'
import { instanceOf, networkNamespace } from '../../daemon/instance-lock.ts'
import { isLockHeld } from '../../daemon/network-lock.ts'
import { HERE, withNetfilter } from '../../daemon/open.ts'
import { createConntrackClient } from '../../kernel/conntrack/client.ts'
import { serviceOfFlow } from '../../modes/common/service-names.ts'
import { readRefused } from '../../modes/refused.ts'
import { askDaemon, askPods, demandAnswer, serviceNames, servicesIn, versionIn } from '../admin-client.ts'
import { stoppedSince, trafficFindings } from '../check/doctor.ts'
import type { FlowNames } from '../live/flow-reading.ts'
import { readLargestUsers } from '../live/top-sampler.ts'
import { readUnanswered } from '../live/unanswered.ts'
import type { StatusSources } from './collect.ts'
import { isFilling } from './problems.ts'
import { daemonFacts, type StatusFacts } from './status-facts.ts'

interface NodeOptions {
  /** The admin socket of the daemon. */
  readonly socket: string
  readonly config: Config
}

/** Reads the facts of this node from the admin socket, the kernel and /proc. */
export function nodeSources({ socket, config }: NodeOptions): StatusSources {
  return {
    wallMs: Date.now,
    version: buildText(buildInfo()),
    daemon: () => askFacts(socket, config),
    rules: async daemon => {
      const mode = daemon.kind === 'answers' ? MODE_NAMES.find(each => each === daemon.mode) : undefined
      return await trafficFindings({ ...config, proxyMode: mode ?? config.proxyMode })
    },
    conntrack: async daemon => {
      const use = await lent(
        createConntrackClient({ openTransport: HERE.sockets.netfilter, clock: systemClock }),
        conntrack => conntrack.statistics(),
      )
      const isNamed = isFilling(use) && daemon.kind === 'answers'
      return { ...use, largest: isNamed ? await readLargestUsers(await namesOf(socket), systemClock) : [] }
    },
    refused: () => withNetfilter(connection => readRefused(connection, config.serviceProxyName)),
    unanswered: async daemon =>
      daemon.kind === 'answers' ? await readUnanswered(await namesOf(socket)) : undefined,
  }
}

/** Throws where a daemon is there that cannot be asked, or that is of another network. */
async function askFacts(socket: string, { serviceProxyName }: Config): Promise<StatusFacts['daemon']> {
  const ask = (path: string) => askDaemon(socket, path, ANSWER)
  let config: unknown
  try {
    config = await ask('/config')
  } catch (error) {
    if (!errorText(error).includes('no answer within')) throw error
    return { kind: 'silent', text: errorText(error) }
  }
  if (config === undefined) {
    if ((await isLockHeld(instanceOf(serviceProxyName).lock)) === true)
      throw new Error(`a daemon runs, and none answers at ${socket}; --admin-socket names its socket`)
    return { kind: 'absent', text: await stoppedSince(socket) }
  }
  versionIn(config, socket)
  if (fieldOf(config, 'network') !== (await networkNamespace()))
    throw new Error(`${socket}: the daemon runs in another network namespace; run the command there`)
  // A daemon of the last release has no page /health.
  const health = await ask('/health').catch((error: unknown) => {
    if (errorText(error).includes('status 404')) return undefined
    throw error
  })
  return daemonFacts({ config, status: await ask('/status'), health })
}

/** Names Services and Pods as FlowNames does, and so for a daemon of another version. */
async function namesOf(socket: string) {
  const names = serviceNames(servicesIn(await demandAnswer(socket, '/state'), socket))
  const pods = await askPods(socket)
  const serviceOf: FlowNames['serviceOf'] = (...destination) => serviceOfFlow(names, ...destination)
  const podAt: FlowNames['podAt'] = endpoint => (endpoint === undefined ? undefined : pods(endpoint))
  return { serviceOf, podAt, version: 0 }
}

/** Maximum time of a whole answer. */
const ANSWER = { answerMs: 20_000 } as const
