import type { NodeReport } from '../../src/relay/node-report.ts'

/** Of a node that holds nothing yet. */
export const REPORT: NodeReport = {
  startedMs: 1,
  number: 1,
  cluster: '',
  isDirect: false,
  held: undefined,
  failure: '',
  lacking: [],
  lackingCount: 0,
  proof: undefined,
  version: '1.2.3',
}
