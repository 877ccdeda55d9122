"""What a launch and each verb do, from first to last step."""
