import { readFileSync } from 'node:fs'
import type { Cancel, Clock } from '../../base/clock.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { messageReceiver } from '../../netlink/batch.ts'
import { NLMSG_MIN_TYPE } from '../../netlink/constants.ts'
import type { Message } from '../../netlink/message.ts'
import type { Transport } from '../../netlink/transport.ts'
import {
  IPCTNL_MSG_CT_DELETE,
  IPCTNL_MSG_CT_NEW,
  NFNLGRP_CONNTRACK_DESTROY,
  NFNLGRP_CONNTRACK_NEW,
} from './constants.ts'
import { messageType } from './flow.ts'

/** A connection begins, or ends. */
export type FlowEventKind = 'new' | 'ended'

const GROUPS = { new: NFNLGRP_CONNTRACK_NEW, ended: NFNLGRP_CONNTRACK_DESTROY } as const

interface FlowEventsOptions {
  /** A socket of NETLINK_NETFILTER for this alone: events would fill the queue of any other. */
  readonly transport: Transport
  readonly clock: Pick<Clock, 'after'>
  readonly kinds: readonly FlowEventKind[]
  /** Takes one event, whose bytes are valid until it returns. */
  readonly take: (kind: FlowEventKind, view: ByteView, message: Message) => void
  /** Called when the kernel dropped events because they were not read in time, or when one was unreadable. */
  readonly lost: (error: Error) => void
}

export interface FlowEvents {
  /** Reads what the kernel has queued, and leaves the groups. The socket stays open. */
  stop(): void
}

const RECEIVE_BYTES = 16 * 1024
/** Bounds the time until other work of the process has its turn. */
const EVENTS_A_TURN = 4_096
/**
 * Rest between two turns while events come. Waking up for each event costs five times what reading it does. A receive
 * buffer that cannot be forced holds 300 events or more, and 10 ms of 20,000 a second are 200.
 */
const REST_MS = 10

/**
 * Reports the connections that begin and end in this network namespace (NFNLGRP_CONNTRACK_NEW and _DESTROY). With
 * net.netfilter.nf_conntrack_events at its default 2, the kernel makes events only while a program listens; with 0 it
 * makes none.
 */
export function watchFlowEvents({ transport, clock, kinds, take, lost }: FlowEventsOptions): FlowEvents {
  const groups = kinds.map(kind => GROUPS[kind])
  let cancel: Cancel | undefined
  let unwatch: (() => void) | undefined
  const receive = messageReceiver({
    transport,
    datagramBytes: RECEIVE_BYTES,
    take: (view, message) => dispatch(view, message, take),
    lost,
  })
  const turn = (): void => {
    const events = receive(EVENTS_A_TURN)
    if (events > 0) cancel = clock.after(events >= EVENTS_A_TURN ? 0 : REST_MS, turn)
    else await_()
  }
  const await_ = (): void => {
    cancel = undefined
    unwatch = transport.watch(() => {
      unwatch?.()
      unwatch = undefined
      turn()
    })
  }
  for (const group of groups) transport.join(group)
  await_()
  return {
    stop() {
      cancel?.()
      unwatch?.()
      for (const group of groups) transport.leave(group)
      while (receive(EVENTS_A_TURN) >= EVENTS_A_TURN);
    },
  }
}

const NEW = messageType(IPCTNL_MSG_CT_NEW)
const DELETE = messageType(IPCTNL_MSG_CT_DELETE)

function dispatch(view: ByteView, message: Message, take: FlowEventsOptions['take']): void {
  const { type } = message
  if (type < NLMSG_MIN_TYPE) return
  if (type === NEW) take('new', view, message)
  else if (type === DELETE) take('ended', view, message)
}

/** Reads how many messages the kernel dropped at a netlink socket of this process; undefined if it does not say. */
export function droppedMessages(portId: number): number | undefined {
  let table: string
  try {
    table = readFileSync('/proc/self/net/netlink', 'utf8')
  } catch {
    return undefined
  }
  for (const line of table.split('\n')) {
    const [, protocol, id, , , , , , drops] = line.trim().split(/\s+/)
    if (protocol === '12' && Number(id) === portId) return Number(drops)
  }
  return undefined
}
