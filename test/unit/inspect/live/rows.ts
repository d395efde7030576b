import { namesOfRows } from '../../../../src/inspect/live/flow-reading.ts'
import type { TopRow } from '../../../../src/inspect/live/top-rows.ts'
import type { TopState } from '../../../../src/inspect/live/top-sampler.ts'
import type { UnansweredRow } from '../../../../src/inspect/live/unanswered-rows.ts'

/** The Services of the tests, by the destination of a connection. */
export const SHOP = namesOfRows([
  { service: 'shop/cart:http', protocol: 'TCP', frontend: '10.96.0.1:80' },
  { service: 'shop/cart:http', protocol: 'TCP', frontend: '*:30080' },
  { service: 'shop/cart6:http', protocol: 'TCP', frontend: '[fd00::1]:80' },
  { service: 'infra/dns:dns', protocol: 'UDP', frontend: '10.96.0.10:53' },
  { service: 'infra/syslog', protocol: 'UDP', frontend: '10.96.0.20:514' },
])

/** Connections to one endpoint, none of which met an answer, unless told otherwise. */
export function unansweredRow(more: Partial<UnansweredRow> = {}): UnansweredRow {
  return {
    service: 'shop/cart:http',
    protocol: 'TCP',
    endpoint: '10.1.0.1:80',
    connections: 41,
    unanswered: 41,
    isOneClient: false,
    isOneWay: false,
    ...more,
  }
}

/** A sample of a node without connections, unless told otherwise. */
export function topState(more: Partial<TopState> = {}): TopState {
  return {
    time: '2026-01-01T10:21:03Z',
    rows: [],
    perSecond: 0,
    rejectsPerSecond: undefined,
    dropsPerSecond: undefined,
    refused: [],
    table: undefined,
    largest: [],
    unanswered: undefined,
    daemon: undefined,
    lost: 0,
    notices: [],
    ...more,
  }
}

/** An endpoint without connections, unless told otherwise. */
export function topRow(service: string, more: Partial<TopRow> = {}): TopRow {
  return {
    service,
    protocol: 'TCP',
    endpoint: '10.1.0.1:80',
    perSecond: 0,
    total: 0,
    open: undefined,
    ...more,
  }
}
