import type { ModeEvent } from '../../mode.ts'
import type { Exhaustion } from './limits.ts'

/** A failure of a relay that an operator may want to know. */
export type RelayEvent =
  | (Exhaustion & { readonly kind: 'exhausted' })
  /** An endpoint did not accept a connection; reported once a minute. */
  | { readonly kind: 'unreachable'; readonly port: string; readonly endpoint: string; readonly error: Error }
  /** No descriptor, port or memory is left for a connection to an endpoint; reported once a minute. */
  | { readonly kind: 'starved'; readonly port: string; readonly error: Error }
  /** A connection of this process came back to it, and was refused; reported once a minute. */
  | { readonly kind: 'loop'; readonly port: string }
  /** An open listener failed. */
  | { readonly kind: 'broken'; readonly port: string; readonly error: Error }

/** Makes the log message of an event. */
export function relayModeEvent(event: RelayEvent): ModeEvent {
  switch (event.kind) {
    case 'exhausted': {
      const { resource, limit, holder } = event
      const text =
        resource === 'connections'
          ? 'too many relayed connections; new ones are refused'
          : 'too many relayed UDP clients; datagrams of new ones are dropped'
      return { kind: 'notice', level: 'warn', text, facts: { limit, share: holder ?? 'all Services' } }
    }
    case 'unreachable': {
      const { port: servicePort, endpoint, error } = event
      const text = 'endpoint does not accept connections; trying others'
      return { kind: 'notice', level: 'info', text, facts: { servicePort, endpoint, error: error.message } }
    }
    case 'starved': {
      const { port: servicePort, error } = event
      const text = 'cannot open a socket to an endpoint; the client is refused'
      return { kind: 'notice', level: 'warn', text, facts: { servicePort, error: error.message } }
    }
    case 'loop': {
      const text = 'refused a connection that this process made to itself'
      return { kind: 'notice', level: 'warn', text, facts: { servicePort: event.port } }
    }
    case 'broken':
      return { kind: 'failed', error: new Error(`relay of ${event.port}: ${event.error.message}`) }
  }
}
