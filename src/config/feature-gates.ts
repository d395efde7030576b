import { parseBool } from './flag.ts'

/**
 * Feature gates of Kubernetes 1.36.3. kube-proxy accepts those of all components, since manifests give every component
 * the same list. The list comes from its registry. Spaces and line breaks separate names.
 */
const ON_BY_DEFAULT = `
  APIResponseCompression APIServerIdentity AllowParsingUserUIDFromCertAuth AllowServiceExternalIPs AtomicFIFO
  AuthorizePodWebsocketUpgradeCreatePermission CPUManagerPolicyBetaOptions CRDObservedGenerationTracking
  ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation ClientsAllowTLSCacheGC ComponentFlagz
  ComponentStatusz ConstrainedImpersonation ContainerCheckpoint ContainerRestartRules ContextualLogging
  CustomCPUCFSQuotaPeriod DRAConsumableCapacity DRADeviceBindingConditions DRADeviceTaints DRAExtendedResource
  DRAPartitionableDevices DRAPrioritizedList DRAResourceClaimDeviceStatus
  DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout DeclarativeValidationBeta
  DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency DisableCPUQuotaWithExclusiveCPUs EnvFiles
  ExtendWebSocketsToKubelet GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority
  HPAConfigurableTolerance HostnameOverride InOrderInformersBatchProcess
  InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScalingInitContainers InformerResourceVersion
  KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages KubeletPodResourcesListUseActivePods
  KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders ListFromCacheSnapshot
  LoggingBetaOptions MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge
  MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs MutatingAdmissionPolicy
  NodeDeclaredFeatures NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching PLEGOnDemandRelist
  PodDeletionCost PodLevelResources PodReadyToStartContainersCondition PodTopologyLabelsAdmission
  PortForwardWebsockets PreventStaticPodAPIReferences RelaxedServiceNameValidation ReloadKubeletClientCAFile
  ReloadKubeletServerCertificateFile RemoteRequestHeaderUID ResourceHealthStatus ResourceHealthStatusMessage
  RestartAllContainersOnContainerExits RotateKubeletServerCertificate SchedulerAsyncPreemption
  SchedulerPopFromBackoffQ ServiceAccountNodeAudienceRestriction ServiceCIDRStatusFieldWiping
  SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet StaleControllerConsistencyJob
  StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
  StatefulSetSemanticRevisionComparison StorageNamespaceIndex StorageVersionHash StrictIPCIDRValidation
  StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics
  TokenRequestServiceAccountUIDValidation TopologyManagerPolicyBetaOptions
  TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy
  UnlockWhileProcessingFIFO WatchCacheInitializationPostStartHook WatchList WatchListClient
  WindowsGracefulNodeShutdown
`

const OFF_BY_DEFAULT = `
  APIServingWithRoutine AllAlpha AllBeta AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests
  AllowUnsafeMalformedObjectDeletion CBORServingAndStorage CPUManagerPolicyAlphaOptions CRIListStreaming
  CSIVolumeHealth ChangeContainerStatusOnKubeletRestart ClientsAllowCBOR ClientsPreferCBOR
  CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook ClusterTrustBundle
  ControllerManagerReleaseLeaderElectionLockOnExit
  ClusterTrustBundleProjection ConcurrentWatchObjectDecode ContainerStopSignals CoordinatedLeaderElection
  CrossNamespaceVolumeDataSource DRADeviceTaintRules DRAListTypeAttributes DRANodeAllocatableResources
  DRAResourcePoolStatus DRAWorkloadResourceClaims DeclarativeValidationTakeover EventedPLEG GangScheduling
  GenericWorkload HPAScaleToZero ImageVolumeWithDigest InPlacePodVerticalScalingExclusiveCPUs
  InPlacePodVerticalScalingExclusiveMemory KMSv1 KubeletInUserNamespace KubeletRegistrationGetOnExistsOnly
  LocalStorageCapacityIsolationFSQuotaMonitoring LoggingAlphaOptions ManifestBasedAdmissionControlConfig
  MaxUnavailableStatefulSet MemoryQoS MutablePVNodeAffinity NativeHistograms
  PersistentVolumeClaimUnusedSinceTime PodAndContainerStatsFromCRI PodCertificateRequest
  PodLevelResourceManagers PodLogsQuerySplitStreams PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay
  RuntimeClassInImageCriApi SELinuxMount SchedulerAsyncAPICalls ShardedListAndWatch StorageCapacityScoring
  StorageVersionAPI StorageVersionMigrator TaintTolerationComparisonOperators TopologyAwareWorkloadScheduling
  TopologyManagerPolicyAlphaOptions UserNamespacesHostNetworkSupport VolumeLimitScaling
  WindowsCPUAndMemoryAffinity WindowsHostNetwork WorkloadAwarePreemption WorkloadWithJob
`

/** Gates that kube-proxy 1.37 added. */
const LATER = 'KubeProxyIPVS KubeProxyNFTablesLocalhostNodePorts NFTablesNetlink'

const LOCKED_ON = `
  APIServerTracing AggregatedDiscoveryRemoveBetaType AnonymousAuthConfigurableEndpoints AnyVolumeDataSource
  AuthorizeNodeWithSelectors AuthorizeWithSelectors BtreeWatchCache CPUManagerPolicyOptions
  CRDValidationRatcheting CSIServiceAccountTokenSecrets ConsistentListFromCache CustomResourceFieldSelectors
  DRAAdminAccess DeclarativeValidation DisableAllocatorDualWrite DisableNodeKubeProxyVersion
  DynamicResourceAllocation ExecProbeTimeout ExternalServiceAccountTokenSigner ImageMaximumGCAge ImageVolume
  InOrderInformers InPlacePodVerticalScaling JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy
  JobSuccessPolicy KubeletCgroupDriverFromCRI KubeletFineGrainedAuthz KubeletPSI
  KubeletPodResourcesDynamicResources KubeletPodResourcesGet KubeletTracing LogarithmicScaleDown
  MatchLabelKeysInPodAffinity MultiCIDRServiceAllocator MutableCSINodeAllocatableCount NFTablesProxyMode
  NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap OrderedNamespaceDeletion
  PodLifecycleSleepAction PodLifecycleSleepActionAllowZero PodObservedGenerationTracking
  PodSchedulingReadiness PreferSameTrafficDistribution ProcMountType RecoverVolumeExpansionFailure
  RecursiveReadOnlyMounts RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation
  ResilientWatchCacheInitialization RetryGenerateName SELinuxChangePolicy SELinuxMountReadWriteOncePod
  SchedulerQueueingHints SeparateTaintEvictionController ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
  ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo SidecarContainers
  StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf
  StructuredAuthenticationConfiguration SupplementalGroupsPolicy SystemdWatchdog TopologyManagerPolicyOptions
  UserNamespacesSupport VolumeAttributesClass WinDSR WinOverlay
`

const LOCKED_OFF = `
  AllowOverwriteTerminationGracePeriodSeconds GitRepoVolumeDriver SeparateCacheWatchRPC
`

const LOCKED_GATES: ReadonlyMap<string, boolean> = new Map([
  ...namesIn(LOCKED_ON).map(name => [name, true] as const),
  ...namesIn(LOCKED_OFF).map(name => [name, false] as const),
])

const OPEN_GATES: ReadonlyMap<string, boolean> = new Map([
  ...namesIn(ON_BY_DEFAULT).map(name => [name, true] as const),
  ...namesIn(OFF_BY_DEFAULT).map(name => [name, false] as const),
  ...namesIn(LATER).map(name => [name, false] as const),
])

function namesIn(text: string): readonly string[] {
  return text.split(/\s+/).filter(name => name !== '')
}

/** Explicit values of gates; the others keep their defaults. */
export type FeatureGates = Readonly<Record<string, boolean>>

/** Gives the reason why kube-proxy refuses this value of a gate; undefined if it accepts it. */
export function whyNotGate(name: string, value: boolean): string | undefined {
  const locked = LOCKED_GATES.get(name)
  if (locked === undefined) return OPEN_GATES.has(name) ? undefined : 'unrecognized feature gate'
  return locked === value ? undefined : `cannot be set to ${value}: the feature is locked to ${locked}`
}

type GateName =
  | 'AllowServiceExternalIPs'
  | 'ComponentFlagz'
  | 'ComponentStatusz'
  | 'LoggingAlphaOptions'
  | 'NativeHistograms'

/** The group, AllAlpha or AllBeta, that sets a gate without an explicit value. */
const STAGES: Readonly<Record<GateName, 'AllAlpha' | 'AllBeta' | undefined>> = {
  AllowServiceExternalIPs: undefined,
  ComponentFlagz: 'AllBeta',
  ComponentStatusz: 'AllBeta',
  LoggingAlphaOptions: 'AllAlpha',
  NativeHistograms: 'AllAlpha',
}

export function isGateOn(gates: FeatureGates, name: GateName): boolean {
  const stage = STAGES[name]
  const byStage = stage === undefined ? undefined : gates[stage]
  return gates[name] ?? byStage ?? OPEN_GATES.get(name) ?? false
}

/** Reads `A=true,B=false`, which may be given several times; the last value of a gate applies. */
export function parseGates(
  texts: readonly string[],
): { readonly gates: FeatureGates } | { readonly problem: string } {
  const gates: [string, boolean][] = []
  for (const pair of texts.flatMap(text => text.split(','))) {
    if (pair === '') continue
    const equals = pair.indexOf('=')
    if (equals < 0) return { problem: `${JSON.stringify(pair)} is not written NAME=true or NAME=false` }
    const value = parseBool(pair.slice(equals + 1).trim())
    if (value === undefined) return { problem: `${JSON.stringify(pair)} does not end in true or false` }
    gates.push([pair.slice(0, equals).trim(), value])
  }
  return { gates: Object.fromEntries(gates) }
}
