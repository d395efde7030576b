import { it } from 'vitest'
import { attackAsPod, POD_MODES } from '../attack/pod-packets.ts'

it('F149: IPVS mode: martian packets from a pod reach nobody, guards hold', ({ task }) =>
  attackAsPod(POD_MODES.ipvs, task))
