import { test } from 'vitest'
import { judgeEvaluator } from '../support/judge-evaluator.ts'

const SEED = Number(process.env.PROOF_SEED ?? 23)

test(`random packets pass random rules as the evaluator says (PROOF_SEED=${SEED})`, () =>
  judgeEvaluator(SEED, 40, 50))
