import type { Clock } from '../base/clock.ts'
import {
  droppedMessages,
  type FlowEventKind,
  type FlowEvents,
  watchFlowEvents,
} from '../kernel/conntrack/record.ts'
import { settingNow } from '../kernel/sysctl/sysctls.ts'
import type { ByteView } from '../netlink/attribute.ts'
import { NETLINK_NETFILTER } from '../netlink/constants.ts'
import type { Message } from '../netlink/message.ts'
import { openNetlink } from '../netlink/native.ts'
import type { Transport } from '../netlink/transport.ts'

/** What the kernel of this network namespace records of connections. */
export interface FlowSettings {
  /** Packets and bytes. */
  readonly hasVolume: boolean
  /** When a connection began. */
  readonly hasTimes: boolean
  /** Why it does not report connections that begin and end; undefined where it does. */
  readonly whyNoEvents: string | undefined
  /** Says what it does not record, and why. */
  readonly notices: readonly string[]
}

const SETTINGS = '/proc/sys/net/netfilter/nf_conntrack_'

export function readFlowSettings(setting: (path: string) => number | undefined = settingNow): FlowSettings {
  const [volume, times, events] = ['acct', 'timestamp', 'events'].map(name => setting(SETTINGS + name))
  // Without any of the settings this namespace hides them, or conntrack is not loaded yet.
  const isBuiltWithout = events === undefined && (volume ?? times) !== undefined
  const why = (name: string, value: number | undefined) =>
    value === undefined ? `${NAMES}${name} is not there` : `${NAMES}${name} is ${value}`
  return {
    hasVolume: volume === 1,
    hasTimes: times === 1,
    whyNoEvents: isBuiltWithout ? BUILT_WITHOUT : events === 0 ? SWITCHED_OFF : undefined,
    notices: [
      ...(volume === 1 ? [] : [`no bytes and packets: ${why('acct', volume)}`]),
      ...(times === 1 ? [] : [`no times: ${why('timestamp', times)}`]),
    ],
  }
}

const NAMES = 'net.netfilter.nf_conntrack_'
const SWITCHED_OFF = `the kernel reports no connections: ${NAMES}events is 0; set it to 1 or 2`
const BUILT_WITHOUT = 'the kernel reports no connections: it was built without CONFIG_NF_CONNTRACK_EVENTS'

/** Bursts of 20,000 events and more wait here; the kernel gives less to a process that may not force it. */
const RECEIVE_BUFFER_BYTES = 32 << 20

function openEventSocket(): Transport {
  return openNetlink({ protocol: NETLINK_NETFILTER, receiveBufferBytes: RECEIVE_BUFFER_BYTES })
}

interface FlowWatchOptions {
  readonly clock: Clock
  readonly kinds: readonly FlowEventKind[]
  readonly take: (kind: FlowEventKind, view: ByteView, message: Message) => void
  readonly open?: () => Transport
  readonly dropped?: (portId: number) => number | undefined
}

/** Connections that begin and end, as the kernel reports them, and how many reports were lost. */
export class FlowWatch {
  readonly #transport: Transport
  readonly #events: FlowEvents
  readonly #dropped: (portId: number) => number | undefined
  #overruns = 0
  #counted = 0

  constructor({ clock, kinds, take, open = openEventSocket, dropped = droppedMessages }: FlowWatchOptions) {
    this.#transport = open()
    this.#dropped = dropped
    const lost = () => {
      this.#overruns++
    }
    try {
      this.#events = watchFlowEvents({ transport: this.#transport, clock, kinds, take, lost })
    } catch (error) {
      void this.#transport.close()
      throw error
    }
  }

  /** Gives how many events were lost since the last call; a gap counts as one where the kernel does not say how many. */
  takeLost(): number {
    if (this.#overruns === 0) return 0
    const gaps = this.#overruns
    this.#overruns = 0
    const total = this.#dropped(this.#transport.portId)
    const news = total === undefined ? gaps : total - this.#counted
    this.#counted = total ?? this.#counted
    return news
  }

  /** Takes what the kernel has queued, and ends. */
  stop(): void {
    this.#events.stop()
  }

  /** Closes the socket; no count of lost events is available afterwards. */
  close(): Promise<void> {
    return this.#transport.close()
  }
}
